job "hardened" {
  group "hardened" {
    task "agent" {
      driver       = "docker"
      user         = "1000:1000"
      kill_signal  = "SIGINT"
      kill_timeout = "1m30s"

      config {
        image             = "example/agent:9"
        memory_hard_limit = 1024
        work_dir          = "/work"
        network_mode      = "host"
        init              = true
        tty               = true
        interactive       = true
        privileged        = true
        group_add         = ["docker", "999"]
        cap_add           = ["NET_ADMIN", "CHOWN"]
        cap_drop          = ["ALL"]
        security_opt      = ["no-new-privileges:true"]
        pid_mode          = "host"
        cpuset_cpus       = "0,1"
        oom_score_adj     = 200
        pids_limit        = 100
        sysctl = {
          "net.ipv4.ip_forward" = "1"
        }

        ulimit {
          nofile = "20000:40000"
          nproc  = "65535"
        }

        logging {
          type = "json-file"

          config {
            max-file = "3"
            max-size = "10m"
          }
        }

        devices {
          host_path          = "/dev/ttyUSB0"
          container_path     = "/dev/ttyUSB0"
          cgroup_permissions = "rw"
        }

        healthchecks {
          disable = true
        }
      }

      resources {
        cpu    = 512
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
