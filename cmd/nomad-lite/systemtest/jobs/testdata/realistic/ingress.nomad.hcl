# The entry point of the site: a reverse proxy, to which a static port of the machine is
# forwarded. It reloads its backends when the service changes.

variable "port" {
  type    = number
  default = 80
}

job "ingress" {
  update {
    min_healthy_time = "1s"
  }

  group "proxy" {
    network {
      mode = "bridge"
      port "http" {
        static = var.port
        to     = 80
      }
    }

    service {
      name     = "ingress"
      port     = "http"
      provider = "nomad"
    }

    task "proxy" {
      driver = "docker"

      config {
        image = "registry.example.com/edge/proxy:2.1"
        args  = ["-listen", ":${NOMAD_PORT_http}", "-config", "/local/proxy.conf"]
      }

      template {
        destination   = "local/proxy.conf"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOT
          # backends of the site
          {{- range nomadService "ingress-backend" }}
          server {{ .Address }}:{{ .Port }};
          {{- end }}
        EOT
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }

  group "backend" {
    count = 2

    network {
      mode = "bridge"
      port "http" {
        to = 8080
      }
    }

    service {
      name     = "ingress-backend"
      port     = "http"
      provider = "nomad"
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
  }
}
