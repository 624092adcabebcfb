locals {
  service_names = ["prometheus:127.0.0.1", "grafana:127.0.0.1", "cadvisor:127.0.0.1"]
}

job "monitoring" {
  group "monitoring" {
    network {
      mode = "bridge"

      port "prometheus" {
        static       = 9090
        to           = 9090
        host_network = "loopback"
      }

      port "grafana" {
        static = 3000
        to     = 3000
      }
    }

    task "prometheus" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "prom/prometheus:v3.0.0"
        command           = "--config.file=/etc/prometheus/prometheus.yml"
        args              = ["--storage.tsdb.retention.time=15d"]
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
        volumes           = ["/srv/monitoring/prometheus.yml:/etc/prometheus/prometheus.yml:ro"]

        mount {
          type   = "volume"
          source = "monitoring_prometheus"
          target = "/prometheus"
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

    task "node-exporter" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "prom/node-exporter:v1.9.0"
        command           = "--path.rootfs=/host"
        memory_hard_limit = 2048
        network_mode      = "host"
        pid_mode          = "host"
        volumes           = ["/:/host:ro,rslave"]
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

    task "grafana" {
      driver       = "docker"
      user         = "472"
      kill_timeout = "10s"

      meta {
        lite_after = "prometheus:started"
      }

      config {
        image             = "grafana/grafana:12.0.0"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names

        mount {
          type   = "volume"
          source = "monitoring_grafana"
          target = "/var/lib/grafana"

          volume_options {
            driver_config {
              name = "local"

              options {
                device = ":/grafana"
                o      = "addr=10.0.0.2,rw"
                type   = "nfs"
              }
            }
          }
        }
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        GF_SECURITY_ADMIN_PASSWORD = "admin"
        GF_USERS_ALLOW_SIGN_UP     = "false"
      }

      restart {
        attempts = 3
        interval = "1m"
        delay    = "2s"
        mode     = "delay"
      }
    }

    task "cadvisor" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "gcr.io/cadvisor/cadvisor:v0.52.0"
        memory_hard_limit = 2048
        extra_hosts       = local.service_names
        privileged        = true

        devices {
          host_path = "/dev/kmsg"
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
