job "secrets" {
  group "secrets" {
    task "db" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "mysql:8.4"
        memory_hard_limit = 2048
        volumes           = ["/srv/secrets/root.txt:/run/secrets/db_root:ro", "secrets/license:/run/secrets/license.txt:ro", "secrets/api_key:/run/secrets/api_key:ro", "/srv/secrets/tuning.cnf:/etc/mysql/conf.d/tuning.cnf:ro", "secrets/motd:/motd:ro"]
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        MYSQL_ROOT_PASSWORD_FILE = "/run/secrets/db_root"
      }

      template {
        data        = "k-123"
        destination = "secrets/api_key"
        perms       = "0444"
      }

      template {
        data        = "{{ with nomadVar \"nomad/jobs/secrets\" }}{{ .license }}{{ end }}"
        destination = "secrets/license"
        perms       = "0400"
      }

      template {
        data        = <<EOT
welcome to {{"{{"}} the }} database
on this machine
with two lines
EOT
        destination = "secrets/motd"
        perms       = "0444"
      }

      restart {
        attempts = 5
        interval = "24h"
        delay    = "2s"
        mode     = "fail"
      }
    }
  }
}
