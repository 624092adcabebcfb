# A web application whose banner is a variable. A change is applied without a restart: the
# application reads its configuration again on SIGHUP.

job "frontend" {
  group "frontend" {
    network {
      port "http" {
        to = 8080
      }
    }

    service {
      name     = "frontend"
      port     = "http"
      provider = "nomad"
    }

    task "frontend" {
      driver = "docker"

      config {
        image = "registry.example.com/shop/web:1.0.0"
        args  = ["-config", "/local/banner"]
        ports = ["http"]
      }

      template {
        destination   = "local/banner"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOT
          {{ with nomadVar "nomad/jobs/frontend" }}{{ .banner }}{{ end }}
        EOT
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
