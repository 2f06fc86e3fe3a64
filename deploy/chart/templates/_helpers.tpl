{{- define "mink.name" -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{- end }}

{{- define "mink.labels" -}}
{{ include "mink.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "mink.selector" -}}
app.kubernetes.io/name: mink
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mink.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "mink.name" .) .Values.serviceAccount.name }}
{{- else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- /* A value of mink.toml: whole numbers without the exponent that YAML's numbers get. */ -}}
{{- define "mink.value" -}}
{{- if kindIs "float64" . }}{{ int64 . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{- /* Keys first: in TOML what follows a table belongs to it. */ -}}
{{- define "mink.toml" -}}
{{- range $key, $value := .Values.config }}{{ if not (kindIs "map" $value) }}
{{ $key }} = {{ include "mink.value" $value }}
{{- end }}{{ end }}
{{- range $key, $value := .Values.config }}{{ if kindIs "map" $value }}

[{{ $key }}]
{{- range $name, $v := $value }}
{{ $name }} = {{ include "mink.value" $v }}
{{- end }}{{ end }}{{ end }}
{{- end }}
