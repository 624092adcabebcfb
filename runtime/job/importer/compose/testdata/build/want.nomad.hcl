locals {
  service_names = ["web:127.0.0.1", "api:127.0.0.1"]
}

job "build" {
  group "build" {
    network {
      mode = "bridge"

      port "web" {
        static = 3000
        to     = 3000
      }
    }

    task "web" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "build-web:local"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        API_URL  = "http://api:4000"
        NODE_ENV = "production"
      }
    }

    task "api" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/api:local"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }
    }
  }
}
