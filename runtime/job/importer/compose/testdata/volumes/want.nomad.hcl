job "volumes" {
  group "volumes" {
    task "files" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/files:1"
        memory_hard_limit = 2048
        volumes           = ["/srv/shared:/shared:ro,z"]

        mount {
          type   = "volume"
          source = "volumes_files_anonymous"
          target = "/anonymous"
        }

        mount {
          type   = "volume"
          source = "volumes_uploads"
          target = "/uploads"

          volume_options {
            no_copy = true

            labels {
              backup = "daily"
            }
          }
        }

        mount {
          type   = "volume"
          source = "legacy_data"
          target = "/old"
        }

        mount {
          type   = "volume"
          source = "volumes_uploads"
          target = "/sub"

          volume_options {
            labels {
              backup = "daily"
            }
          }
        }

        mount {
          type   = "tmpfs"
          target = "/scratch"

          tmpfs_options {
            size = 67108864
            mode = 1023
          }
        }

        mount {
          type   = "bind"
          source = "/mnt"
          target = "/mnt"

          bind_options {
            propagation = "rslave"
          }
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
