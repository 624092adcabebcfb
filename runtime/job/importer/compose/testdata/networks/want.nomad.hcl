locals {
  service_names = ["proxy:127.0.0.1", "app:127.0.0.1", "the-app:127.0.0.1", "app.internal:127.0.0.1", "application:127.0.0.1", "db:127.0.0.1", "database:127.0.0.1"]
}

job "networks" {
  group "networks" {
    network {
      mode = "bridge"

      port "proxy_80" {
        static = 80
        to     = 80
      }

      port "proxy_443" {
        static = 443
        to     = 443
      }
    }

    task "proxy" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "traefik:v3"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
        labels = {
          "com.example.note" = "has = in it"
          "traefik.enable"   = "true"
        }
      }

      resources {
        cpu    = 100
        memory = 256
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }

    task "app" {
      driver       = "docker"
      kill_timeout = "10s"

      meta {
        lite_after = "db:started"
      }

      config {
        image             = "example/app:1"
        memory_hard_limit = 2048
        extra_hosts       = concat(local.service_names, ["host.docker.internal:172.26.64.1", "legacy:10.0.0.7"])
        dns_servers       = ["9.9.9.9"]
      }

      resources {
        cpu    = 100
        memory = 256
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }

    task "db" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "postgres:17"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }
  }
}
