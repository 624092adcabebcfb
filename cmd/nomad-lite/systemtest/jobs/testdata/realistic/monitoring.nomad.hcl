# The monitoring stack: a collector that finds its targets through service discovery, and
# two exporters. Each group has an address of its own on the bridge.

job "monitoring" {
  group "monitor" {
    network {
      mode = "bridge"
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
      mode = "bridge"
      port "web" {
        to = 8080
      }
      port "host" {
        to = 9100
      }
    }

    # The collector reaches this exporter on the bridge, and the other one at its forwarded port.
    service {
      name         = "web-exporter"
      port         = "web"
      provider     = "nomad"
      address_mode = "alloc"
      tags         = ["metrics"]
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
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }

    # The load is that of the machine, also in the container.
    task "host" {
      driver = "docker"

      config {
        image   = "busybox:1.36"
        command = "/bin/sh"
        args    = ["-c", "mkdir -p /local/www; (while true; do cp /proc/loadavg /local/www/metrics; sleep 5; done) & exec httpd -f -p $NOMAD_PORT_host -h /local/www"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
