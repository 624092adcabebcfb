locals {
  service_names = ["web:127.0.0.1", "api:127.0.0.1", "metrics:127.0.0.1"]
}

job "same-port" {
  group "same-port" {
    network {
      mode = "bridge"

      port "web" {
        static = 80
        to     = 8080
      }

      port "api" {
        static = 81
        to     = 8080
      }
    }

    task "web" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/web:1"
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

    task "api" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/api:1"
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

    task "metrics" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/metrics:1"
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
  }
}
