package redact

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRedact(t *testing.T) {
	for url, want := range map[string]string{
		"nats://me:s3cret@host:4222/?stream=s":   "nats://me:***@host:4222/?stream=s",
		"nats://s3cret@host":                     "nats://:***@host",
		"redis://:s3cret@host/0":                 "redis://:***@host/0",
		"https://host/in?token=s3cret&a=b":       "https://host/***",
		"https://me:s3cret@host/services/s3cret": "https://host/***",
		"https://me:s3cret@host/":                "https://me:***@host/",
		"redis://me:s3 cret@host/":               "redis:***",
		"s3cret":                                 "***",
		"me:s3cret@host":                         "me:***",
		"stdout":                                 "***",
		"exec:load%20--key=s3cret":               "exec:load",
		"exec:/usr/bin/load%20--key=s3cret":      "exec:/usr/bin/load",
		"exec:///usr/bin/load%20--key=s3cret":    "exec:/usr/bin/load",
		"exec:./load --key=s3cret":               "exec:./load",
		"exec:./load%09s3cret":                   "exec:./load",
		"exec:/load s3cret":                      "exec:/load",
		"exec:load%zzs3cret":                     "exec:load",
		"exec:load?s3cret#s3cret":                "exec:load",
		"tls://s3cret@host":                      "tls://:***@host",
		"mqtt://s3cret@host":                     "mqtt://:***@host",
		"redis://host/0?password=s3cret;x":       "redis://host/0",
		"redis://host/0#s3cret":                  "redis://host/0",
		"redis://me:1#s3cret@host/0":             "redis:***",
		"redis://me:1?s3cret@host/0":             "redis:***",
		"redis://me:1/s3cret@host/0":             "redis:***",
		"redis://me:1@/s3cret@host/0":            "redis:***",
		"file:///tmp/a@b?rotate=1MB":             "file:///tmp/a@b?rotate=1MB",
		"file:a.jsonl?keep=1":                    "file:a.jsonl?keep=1",
	} {
		require.Equal(t, want, URL(url), url)
	}
}
