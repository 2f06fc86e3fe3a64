package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// softwarePattern is KIP-511's: what does not match is told so, not cut off.
var softwarePattern = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?$`)

func answerWith(r kmsg.Response) func(context.Context) (reply, error) {
	return func(context.Context) (reply, error) { return reply{body: r}, nil }
}

func apiVersions(version int16, c code) *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = version
	resp.ErrorCode = int16(c)
	for _, a := range served {
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = a.Key, a.Min, a.Max
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	return resp
}

func (b *broker) acceptAPIVersions(cl *call, body []byte) {
	r := kmsg.NewPtrApiVersionsRequest()
	c := codeNone
	if err := decode(cl, r, body); err != nil {
		c = codeInvalidRequest
	} else if r.Version >= 3 && (!softwarePattern.MatchString(r.ClientSoftwareName) || !softwarePattern.MatchString(r.ClientSoftwareVersion)) {
		c = codeInvalidRequest
	}
	b.fail(cl.api, c)
	cl.answer = answerWith(apiVersions(cl.header.version, c))
}

// acceptNewerAPIVersions answers a version that we do not know without looking
// at its body: version 0, error 35, and the whole table, so that the client can
// choose at once.
func (b *broker) acceptNewerAPIVersions(cl *call) *call {
	cl.answer = answerWith(apiVersions(0, code(b.fail(cl.api, codeUnsupportedVersion))))
	return cl
}

// acceptUnserved answers UNSUPPORTED_VERSION in the response's own schema where
// that schema has a place for it, and closes the connection where not.
func (b *broker) acceptUnserved(cl *call) (*call, error) {
	h := &cl.header
	name := kmsg.NameForKey(h.key)
	if cl.api == "" {
		cl.api = name
	}
	refusal := closef(slog.LevelWarn, "api key %d (%s) version %d is not served; see ApiVersions", h.key, name, h.version)
	resp := refusalIn(h.key, h.version)
	if resp == nil {
		return nil, refusal
	}
	b.fail(cl.api, codeUnsupportedVersion)
	h.flexible = isFlexible(h.key, h.version)
	cl.answer = answerWith(resp)
	return cl, nil
}

// refusalIn is a response of the key and version whose top-level error code is
// UNSUPPORTED_VERSION, nil when that version has none. Whether it does is found
// by decoding what would be sent.
func refusalIn(key, version int16) kmsg.Response {
	resp := kmsg.ResponseForKey(key)
	if resp == nil || version < 0 || version > resp.MaxVersion() {
		return nil
	}
	set := func(r kmsg.Response) reflect.Value {
		return reflect.ValueOf(r).Elem().FieldByName("ErrorCode")
	}
	if d, ok := resp.(interface{ Default() }); ok {
		d.Default()
	}
	f := set(resp)
	if !f.IsValid() || f.Kind() != reflect.Int16 {
		return nil
	}
	f.SetInt(int64(codeUnsupportedVersion))
	resp.SetVersion(version)
	check := kmsg.ResponseForKey(key)
	check.SetVersion(version)
	if err := check.ReadFrom(resp.AppendTo(nil)); err != nil || set(check).Int() != int64(codeUnsupportedVersion) {
		return nil
	}
	return resp
}

// String is for logs.
func (c *call) String() string { return fmt.Sprintf("%s v%d", c.api, c.header.version) }
