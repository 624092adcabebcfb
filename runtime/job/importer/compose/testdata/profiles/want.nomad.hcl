locals {
  service_names = ["app:127.0.0.1", "db:127.0.0.1", "adminer:127.0.0.1", "seed:127.0.0.1"]
}

job "profiles" {
  group "profiles" {
    network {
      mode = "bridge"

      port "adminer" {
        static = 8081
        to     = 8080
      }
    }

    task "app" {
      driver       = "docker"
      kill_timeout = "10s"

      meta {
        lite_after = "db:started"
      }

      config {
        image             = "example/app:3"
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

    task "db" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "postgres:17"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        POSTGRES_HOST_AUTH_METHOD = "trust"
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }

    task "adminer" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "adminer:5"
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

    task "seed" {
      driver       = "docker"
      kill_timeout = "10s"

      lifecycle {
        hook    = "poststart"
        sidecar = false
      }

      meta {
        lite_after = "db:started"
      }

      config {
        image             = "example/app:3"
        command           = "seed"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
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
  }
}
