locals {
  service_names = ["app:127.0.0.1", "pages:127.0.0.1"]
}

job "shell" {
  group "shell" {
    network {
      mode = "bridge"
    }

    task "app" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/app:1"
        command           = "sh"
        args              = ["-c", "until wget -q -O /dev/null http://pages:8080/; do sleep 1; done\necho \"$$${GREETING:-hello} $(date) %%%{x} $HOME\"\nexec app \"$@\"\n"]
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        PERCENT  = "%%{ if true }"
        TEMPLATE = "$${HOME} costs $5"
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }

    task "pages" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/pages:1"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names

        mount {
          type   = "tmpfs"
          target = "/var/lib/pages"
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
