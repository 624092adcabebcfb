# The monitoring stack: a collector that finds its targets through service discovery, and
# two exporters.

job "monitoring" {
  group "monitor" {
    network {
      port "ui" {
        to = 9090
      }
    }

    service {
      name     = "monitor"
      port     = "ui"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/-/healthy"
        interval = "2s"
        timeout  = "1s"
      }
    }

    task "monitor" {
      driver = "docker"

      config {
        image = "registry.example.com/ops/monitor:3.0"
        args  = ["-config", "/local/targets", "-interval", "1s"]
        ports = ["ui"]
      }

      # The collector reads the file before each round.
      template {
        destination = "local/targets"
        change_mode = "noop"
        data        = <<-EOT
          {{- range nomadServices }}{{ if .Tags | contains "metrics" }}{{ range nomadService .Name }}
          {{ .Name }} http://{{ .Address }}:{{ .Port }}/metrics
          {{- end }}{{ end }}{{ end }}
        EOT
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }

  group "exporters" {
    network {
      port "web" {
        to = 8080
      }
      port "host" {}
    }

    service {
      name     = "web-exporter"
      port     = "web"
      provider = "nomad"
      tags     = ["metrics"]
    }

    service {
      name     = "host-exporter"
      port     = "host"
      provider = "nomad"
      tags     = ["metrics"]
    }

    task "web" {
      driver = "docker"

      config {
        image = "registry.example.com/shop/web:1.0.0"
        ports = ["web"]
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }

    # Reads the load of the machine, so it runs in the network of the machine.
    task "host" {
      driver = "docker"

      config {
        image        = "busybox:1.36"
        command      = "/bin/sh"
        args         = ["-c", "mkdir -p /local/www; (while true; do cp /proc/loadavg /local/www/metrics; sleep 5; done) & exec httpd -f -p $NOMAD_ADDR_host -h /local/www"]
        network_mode = "host"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
