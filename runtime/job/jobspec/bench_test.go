package jobspec

import (
	"bytes"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/nomad-lite/nomad-lite/runtime/job/fileaccess"
)

// sixtyLineJob is a job of average size.
var sixtyLineJob = []byte(`variable "image" {
  type    = string
  default = "redis:7"
}

locals {
  name = "cache-${var.image}"
}

job "cache" {
  datacenters = ["dc1"]
  type        = "service"

  update {
    max_parallel     = 1
    min_healthy_time = "10s"
    healthy_deadline = "3m"
  }

  group "cache" {
    count = 1

    restart {
      attempts = 2
      interval = "30m"
      delay    = "15s"
      mode     = "fail"
    }

    network {
      port "db" {
        to = 6379
      }
    }

    task "redis" {
      driver = "docker"

      config {
        image = var.image
        ports = ["db"]
        args  = ["--name", local.name, "--host", "${attr.unique.hostname}"]
      }

      env {
        PORT = "${NOMAD_PORT_db}"
        HOME = "${NOMAD_TASK_DIR}/home"
      }

      template {
        data        = "port={{ env \"NOMAD_PORT_db\" }}"
        destination = "local/redis.conf"
      }

      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
`)

func TestBenchmarkJobIsSixtyLines(t *testing.T) {
	if n := bytes.Count(sixtyLineJob, []byte("\n")); n < 58 || n > 64 {
		t.Errorf("it has %d lines", n)
	}
}

// BenchmarkParse measures the budget "parse of a 60-line job file: 1 ms"; the time of
// the library's own parser is its lower bound.
func BenchmarkParse(b *testing.B) {
	b.Run("job", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: sixtyLineJob, Files: fileaccess.NewReader(fileaccess.Policy{}), RejectsUndeclaredVariables: true}); diags.HasErrors() {
				b.Fatal(NomadErrorText(diags))
			}
		}
	})
	b.Run("floor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, diags := hclsyntax.ParseConfig(sixtyLineJob, "in.hcl", hcl.InitialPos); diags.HasErrors() {
				b.Fatal(diags)
			}
		}
	})
}

// BenchmarkParseOversized measures the rejection of a mebibyte of brackets.
func BenchmarkParseOversized(b *testing.B) {
	text := []byte("job \"j\" {\n  meta {\n    a = " + repeatToMaxText("["))
	b.ReportAllocs()
	for b.Loop() {
		if _, diags := Parse(ParseInput{DiagnosticFileName: "in.hcl", Text: text}); !diags.HasErrors() {
			b.Fatal("accepted")
		}
	}
}
