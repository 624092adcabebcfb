# A store with a password from the variables of the job. When the password is rotated, the
# store restarts with the new one.

job "sessions" {
  group "sessions" {
    network {
      port "db" {
        to = 6379
      }
    }

    service {
      name     = "sessions"
      port     = "db"
      provider = "nomad"
    }

    task "kvstore" {
      driver = "docker"

      config {
        image = "kvstore:7.4"
        ports = ["db"]
      }

      template {
        destination = "secrets/password.env"
        env         = true
        change_mode = "restart"
        perms       = "0400"
        data        = <<-EOT
          {{ with nomadVar "nomad/jobs/sessions" }}
          KVSTORE_PASSWORD={{ .password }}
          {{ end }}
        EOT
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
