# Saves the data of the guest book to a directory of the machine, each hour.

variable "backup_dir" {
  type    = string
  default = "/var/backups"
}

job "guestbook-backup" {
  type = "batch"

  periodic {
    cron             = "@hourly"
    prohibit_overlap = true
  }

  group "backup" {
    task "tar" {
      driver = "docker"

      config {
        image   = "busybox:1.36"
        command = "tar"
        args    = ["-czf", "/backup/guestbook.tar.gz", "-C", "/data", "."]
        volumes = ["${var.backup_dir}:/backup"]

        mount {
          type     = "volume"
          source   = "guestbook-data"
          target   = "/data"
          readonly = true
        }
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
