locals {
  service_names = ["extract:127.0.0.1", "load:127.0.0.1", "report:127.0.0.1"]
}

job "jobs" {
  type = "batch"

  group "jobs" {
    network {
      mode = "bridge"
    }

    task "extract" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "example/etl:2"
        command           = "extract"
        args              = ["--since", "yesterday"]
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

    task "load" {
      driver       = "docker"
      kill_timeout = "10s"

      meta {
        lite_after = "extract:success"
      }

      config {
        image             = "example/etl:2"
        command           = "sh"
        args              = ["-c", "load /data && echo 'it''s done'"]
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
      }

      resources {
        cpu    = 100
        memory = 256
      }

      restart {
        attempts = 3
        interval = "24h"
        delay    = "2s"
        mode     = "fail"
      }
    }

    task "report" {
      driver       = "docker"
      kill_timeout = "10s"

      meta {
        lite_after = "load:success"
      }

      config {
        image             = "example/etl:2"
        entrypoint        = ["/bin/report", "--format", "pdf"]
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
