locals {
  service_names = ["setup:127.0.0.1", "server:127.0.0.1", "client:127.0.0.1"]
}

job "queue" {
  group "queue" {
    network {
      mode = "bridge"
    }

    task "setup" {
      driver       = "docker"
      kill_timeout = "10s"

      lifecycle {
        hook    = "prestart"
        sidecar = false
      }

      config {
        image             = "busybox:1.37"
        command           = "sh"
        args              = ["-c", "echo ready >/data/state"]
        memory_hard_limit = 2048
        extra_hosts       = local.service_names

        mount {
          type   = "volume"
          source = "queue_state"
          target = "/data"
        }
      }

      resources {
        cpu    = 100
        memory = 256
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }

    task "server" {
      driver         = "docker"
      kill_signal    = "SIGKILL"
      kill_timeout   = "10s"
      shutdown_delay = "1s"

      meta {
        lite_after = "setup:success"
      }

      config {
        image             = "busybox:1.37"
        command           = "sh"
        args              = ["-c", "cp /data/state /tmp/index.html && exec httpd -f -p 8080 -h /tmp"]
        memory_hard_limit = 2048
        extra_hosts       = local.service_names

        mount {
          type   = "volume"
          source = "queue_state"
          target = "/data"
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

      service {
        name = "queue-server"

        check {
          name                     = "healthcheck"
          type                     = "script"
          command                  = "/bin/sh"
          args                     = ["-c", "wget -q -O - http://127.0.0.1:8080/ | grep ready"]
          interval                 = "1s"
          timeout                  = "2s"
          failures_before_critical = 2
        }
      }
    }

    task "client" {
      driver       = "docker"
      kill_timeout = "1s"

      meta {
        lite_after = "server:healthy"
      }

      config {
        image             = "busybox:1.37"
        command           = "sh"
        args              = ["-c", "echo \"the server says $(wget -q -O - http://$$${SERVER:-nowhere}/index.html)\"\nexec sleep 1000\n"]
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        SERVER = "server:8080"
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
