# Blue/green: as many canaries as instances, so that all traffic moves at once. It is
# promoted by itself when all of them are healthy.

variable "version" {
  type = string
}

job "accounts" {
  group "accounts" {
    count = 2

    update {
      canary           = 2
      max_parallel     = 2
      min_healthy_time = "1s"
      healthy_deadline = "1m"
      auto_promote     = true
      auto_revert      = true
    }

    network {
      port "http" {
        to = 8080
      }
    }

    service {
      name     = "accounts"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/healthz"
        interval = "2s"
        timeout  = "1s"
      }
    }

    task "accounts" {
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
