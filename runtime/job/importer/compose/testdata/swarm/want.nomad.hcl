locals {
  service_names = ["web:127.0.0.1", "logger:127.0.0.1"]
}

job "swarm" {
  group "swarm" {
    network {
      mode = "bridge"
    }

    task "web-1" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/web:1"
        memory_hard_limit = 1024
        pids_limit        = 50
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      restart {
        attempts = 3
        interval = "2m"
        delay    = "5s"
        mode     = "fail"
      }
    }

    task "web-2" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/web:1"
        memory_hard_limit = 1024
        pids_limit        = 50
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      restart {
        attempts = 3
        interval = "2m"
        delay    = "5s"
        mode     = "fail"
      }
    }

    task "logger" {
      driver         = "docker"
      kill_timeout   = "10s"
      shutdown_delay = "1s"

      config {
        image             = "example/logger:1"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names

        labels {
          autoheal = "true"
        }

        logging {
          type = "syslog"

          config {
            syslog-address = "udp://10.0.0.3:514"
          }
        }
      }

      resources {
        cpu    = 100
        memory = 256
      }

      service {
        name = "swarm-logger"

        check {
          name                     = "healthcheck"
          type                     = "script"
          command                  = "check"
          args                     = ["/root/x"]
          interval                 = "30s"
          timeout                  = "30s"
          failures_before_critical = 1

          check_restart {
            limit = 2
            grace = "1m"
          }
        }
      }
    }
  }
}
