// Package deploy holds no code: an image, a compose file, a chart and a systemd unit.
// Its test gives every flag, variable and key in them to mink serve --check-config.
package deploy
