job "docker-network" {
  group "docker-network" {
    network {
      port "web" {
        static = 80
        to     = 8080
      }
    }

    task "web" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/web:1"
        memory_hard_limit = 2048
        hostname          = "web"
        network_mode      = "shop"
        network_aliases   = ["web"]
        ports             = ["web"]
        sysctl = {
          "net.core.somaxconn" = "1024"
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

    task "db" {
      driver         = "docker"
      kill_timeout   = "10s"
      shutdown_delay = "1s"

      config {
        image             = "postgres:17"
        memory_hard_limit = 2048
        network_mode      = "shop"
        network_aliases   = ["db"]
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
        name = "docker-network-db"

        check {
          name                     = "healthcheck"
          type                     = "script"
          command                  = "pg_isready"
          interval                 = "30s"
          timeout                  = "30s"
          failures_before_critical = 2
        }
      }
    }
  }

  group "api" {
    count = 3

    task "api" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/api:1"
        memory_hard_limit = 2048
        network_mode      = "shop"
        network_aliases   = ["api"]
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
