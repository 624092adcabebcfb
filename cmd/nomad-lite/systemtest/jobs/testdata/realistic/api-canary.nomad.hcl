# The public API. A new version runs beside the old one until an operator promotes it.

variable "version" {
  type = string
}

job "api" {
  update {
    canary           = 1
    max_parallel     = 1
    min_healthy_time = "1s"
    healthy_deadline = "1m"
    auto_promote     = false
    auto_revert      = true
  }

  group "api" {
    count = 2

    network {
      port "http" {
        to = 8080
      }
    }

    service {
      name        = "api"
      port        = "http"
      provider    = "nomad"
      tags        = ["live"]
      canary_tags = ["canary"]

      check {
        type     = "http"
        path     = "/healthz"
        interval = "2s"
        timeout  = "1s"
      }
    }

    task "api" {
      driver = "docker"

      config {
        image = "registry.example.com/shop/web:${var.version}"
        ports = ["http"]
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
