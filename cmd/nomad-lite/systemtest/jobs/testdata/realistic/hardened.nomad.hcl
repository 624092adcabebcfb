# A web application with as few rights as possible: an unprivileged user, a read-only root
# file system, no capabilities, and a limit of processes.

job "intranet" {
  group "intranet" {
    network {
      port "http" {
        to = 8080
      }
    }

    service {
      name     = "intranet"
      port     = "http"
      provider = "nomad"
    }

    task "web" {
      driver = "docker"
      user   = "65534:65534"

      config {
        image           = "busybox:1.36"
        command         = "/bin/sh"
        args            = ["-c", "{ id -u; touch /etc/x 2>&1; touch /tmp/x && echo scratch; grep CapEff /proc/self/status; } >/tmp/report; exec httpd -f -p 8080 -h /tmp"]
        ports           = ["http"]
        readonly_rootfs = true
        cap_drop        = ["all"]
        pids_limit      = 50
        security_opt    = ["no-new-privileges"]

        mount {
          type   = "tmpfs"
          target = "/tmp"

          tmpfs_options {
            size = 1000000
          }
        }

        ulimit {
          nofile = "1024:1024"
        }
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
