job "nginx-single" {
  group "nginx-single" {
    network {
      port "web_80" {
        static = 8080
        to     = 80
      }

      port "web_443" {
        static = 8443
        to     = 443
      }
    }

    task "web" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image           = "nginx:1.29-alpine"
        ports           = ["web_80", "web_443"]
        readonly_rootfs = true
        volumes         = ["/srv/nginx-single/html:/usr/share/nginx/html:ro"]

        mount {
          type     = "bind"
          source   = "/srv/nginx-single/nginx.conf"
          target   = "/etc/nginx/nginx.conf"
          readonly = true
        }

        mount {
          type   = "tmpfs"
          target = "/var/cache/nginx"
        }

        mount {
          type   = "tmpfs"
          target = "/run"

          tmpfs_options {
            size = 16777216
            mode = 1023
          }
        }
      }

      resources {
        cpu    = 100
        memory = 64
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
