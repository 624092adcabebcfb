# A web application that stops working from time to time. Its health check restarts it.

job "legacy-cms" {
  group "cms" {
    network {
      port "http" {
        to = 8080
      }
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "1s"
      mode     = "delay"
    }

    service {
      name     = "legacy-cms"
      port     = "http"
      provider = "nomad"
      task     = "web"

      check {
        name     = "works"
        type     = "http"
        path     = "/healthz"
        interval = "1s"
        timeout  = "1s"

        check_restart {
          limit = 2
          grace = "1s"
        }
      }
    }

    task "web" {
      driver = "docker"

      config {
        image = "registry.example.com/shop/web:1.0.0"
        ports = ["http"]
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
