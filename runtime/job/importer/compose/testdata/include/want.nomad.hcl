locals {
  service_names = ["queue:127.0.0.1", "app:127.0.0.1"]
}

job "include" {
  group "include" {
    network {
      mode = "bridge"
    }

    task "queue" {
      driver         = "docker"
      kill_timeout   = "10s"
      shutdown_delay = "1s"

      config {
        image             = "rabbitmq:4"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
        volumes           = ["/srv/include/infra/conf:/etc/rabbitmq/conf.d"]
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

      service {
        name = "include-queue"

        check {
          name                     = "healthcheck"
          type                     = "script"
          command                  = "/bin/sh"
          args                     = ["-c", "rabbitmq-diagnostics -q ping"]
          interval                 = "1s"
          timeout                  = "30s"
          failures_before_critical = 2
        }
      }
    }

    task "app" {
      driver       = "docker"
      kill_timeout = "10s"

      meta {
        lite_after = "queue:started"
      }

      config {
        image             = "example/app:1"
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
