# One group per environment, generated from a list.

variable "environments" {
  type = map(object({
    count    = number
    greeting = string
  }))
  default = {
    staging = {
      count    = 1
      greeting = "hello testers"
    }
    production = {
      count    = 2
      greeting = "hello customers"
    }
  }
}

job "greeter" {
  dynamic "group" {
    for_each = var.environments
    iterator = environment
    labels   = [environment.key]

    content {
      count = environment.value.count

      network {
        port "http" {
          to = 8080
        }
      }

      service {
        name     = "greeter-${environment.key}"
        port     = "http"
        provider = "nomad"
      }

      task "web" {
        driver = "docker"

        config {
          image = "registry.example.com/shop/web:1.1.0"
          ports = ["http"]
        }

        env {
          GREETING = environment.value.greeting
        }

        resources {
          cpu    = 50
          memory = 64
        }
      }
    }
  }
}
