locals {
  service_names = ["web:127.0.0.1", "worker:127.0.0.1", "web-base:127.0.0.1"]
}

job "extends" {
  group "extends" {
    network {
      mode = "bridge"

      port "web" {
        static = 8000
        to     = 8000
      }
    }

    task "web" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/app:1"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
        volumes           = ["/srv/extends/common/data:/data"]

        labels {
          team = "shop"
        }
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        LOG_LEVEL = "debug"
        REGION    = "eu"
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }

    task "worker" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/worker:2"
        command           = "work"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names

        mount {
          type   = "volume"
          source = "shared_cache"
          target = "/cache"
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

    task "web-base" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/worker:2"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names

        mount {
          type   = "volume"
          source = "shared_cache"
          target = "/cache"
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
  }
}
