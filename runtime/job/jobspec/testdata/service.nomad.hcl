# A service with most of what one can say about a job, a group and a task.
job "orders" {
  name        = "Orders"
  namespace   = "shop"
  region      = "global"
  type        = "service"
  priority    = 70
  all_at_once = true
  datacenters = ["dc1", "eu-*"]
  node_pool   = "default"

  ui {
    description = "Takes *orders*"
    link {
      label = "Runbook"
      url   = "https://example.com/runbook"
    }
    link {
      label = "Board"
      url   = "https://example.com/board?a=1&b=2"
    }
  }

  meta {
    owner = "shop"
    cost  = 1.50
  }

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  constraint {
    attribute = attr.cpu.numcores
    operator  = ">="
    value     = 2
  }

  affinity {
    attribute = "${node.class}"
    value     = "fast"
    weight    = 75
  }

  spread {
    attribute = "${node.datacenter}"
    weight    = 80
    target "dc1" {
      percent = 60
    }
    target "eu-1" {
      percent = 40
    }
  }

  update {
    max_parallel      = 2
    health_check      = "checks"
    min_healthy_time  = "11s"
    healthy_deadline  = "3m"
    progress_deadline = "9m"
    canary            = 1
    auto_promote      = true
    auto_revert       = true
    stagger           = "20s"
  }

  reschedule {
    delay          = "30s"
    delay_function = "fibonacci"
    max_delay      = "1h"
    unlimited      = true
  }

  migrate {
    max_parallel     = 1
    health_check     = "task_states"
    min_healthy_time = "5s"
    healthy_deadline = "2m"
  }

  group "web" {
    count                        = 3
    shutdown_delay               = "2s"
    max_run_duration             = "24h"
    max_client_disconnect        = "1h"
    stop_after_client_disconnect = "2h"
    prevent_reschedule_on_lost   = true

    consul {
      namespace = "c"
      cluster   = "default"
      partition = "p"
    }

    disconnect {
      lost_after = "6h"
      replace    = false
      reconcile  = "best_score"
    }

    ephemeral_disk {
      size    = 500
      sticky  = true
      migrate = true
    }

    restart {
      attempts         = 4
      interval         = "10m"
      delay            = "25s"
      mode             = "delay"
      render_templates = true
    }

    scaling {
      enabled = false
      min     = 1
      max     = 9
      policy {
        cooldown = "1m"
        check "cpu" {
          source = "nomad-apm"
          strategy "target-value" {
            target = 70.5
          }
        }
      }
    }

    network {
      mode     = "bridge"
      hostname = "web-${NOMAD_ALLOC_INDEX}"
      dns {
        servers  = ["1.1.1.1"]
        searches = ["example.com"]
        options  = ["ndots:2"]
      }
      port "http" {
        to = 8080
      }
      port "https" {
        static           = 8443
        host_network     = "public"
        ignore_collision = true
      }
      port "same" {
        to = -1
      }
      cni {
        args = {
          "nat.rule" = "x"
          weight     = 3
        }
      }
    }

    service {
      name         = "orders-${TASKGROUP}"
      provider     = "nomad"
      port         = "http"
      tags         = ["v1", "${NOMAD_ALLOC_ID}"]
      canary_tags  = ["canary"]
      address_mode = "auto"
      on_update    = "ignore_warnings"
      meta {
        version = 1
      }
      canary_meta {
        version = 2
      }
      tagged_addresses {
        lan = "10.0.0.1"
      }
      weights {
        passing = 3
        warning = 1
      }
      check_restart {
        limit           = 3
        grace           = "10s"
        ignore_warnings = true
      }
      identity {
        aud = ["consul.io"]
        ttl = "1h"
      }
      check {
        name           = "ready"
        type           = "http"
        path           = "/ready?a=${x}"
        interval       = "10s"
        timeout        = "2s"
        method         = "POST"
        body           = "{}"
        initial_status = "passing"
        header {
          Authorization = ["Basic x"]
          Accept        = ["a", "b"]
        }
        check_restart {
          limit = 5
        }
      }
      check {
        type                     = "grpc"
        interval                 = 1000000000
        timeout                  = "1s"
        grpc_service             = "s"
        grpc_use_tls             = true
        tls_server_name          = "n"
        tls_skip_verify          = true
        success_before_passing   = 1
        failures_before_critical = 2
        failures_before_warning  = 3
        expose                   = true
      }
    }

    task "init" {
      driver = "raw_exec"
      lifecycle {
        hook    = "prestart"
        sidecar = false
      }
      config {
        command = "/bin/true"
      }
    }

    task "server" {
      driver         = "exec"
      user           = "nobody"
      leader         = true
      kill_timeout   = "40s"
      kill_signal    = "SIGINT"
      shutdown_delay = "3s"
      kind           = ""

      config {
        command = "${NOMAD_TASK_DIR}/server"
        args    = ["-port", "${NOMAD_PORT_http}", 1, true, null]
        ratio   = 0.25
        labels  = { a = "1", "b.c" = 2 }
        mount {
          type   = "bind"
          source = "/srv"
          options {
            readonly = true
          }
        }
        mount {
          type = "tmpfs"
        }
        sysctl "net.core" {
          somaxconn = 1e4
        }
      }

      env = {
        "dotted.name" = "${attr.unique.hostname}"
        PORT          = NOMAD_PORT_http
        NUMBER        = 12
      }

      meta {
        kind = "server"
      }

      resources {
        cpu        = 500
        memory     = 256
        memory_max = 512
        secrets    = 2
        disk       = 10
        iops       = 5
        device "nvidia/gpu" {
          count = 2
          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "2 GiB"
          }
          affinity {
            attribute = "${device.model}"
            value     = "x"
            weight    = -10
          }
        }
        numa {
          affinity = "prefer"
          devices  = ["nvidia/gpu"]
        }
        network {
          mbits = 10
          port "old" {
            static = 99
          }
        }
      }

      restart {
        attempts = 0
      }

      logs {
        max_files     = 3
        max_file_size = 20
        disabled      = false
        enabled       = true
      }

      artifact {
        source      = "git::https://example.com/repo?ref=v1"
        destination = "local/repo"
        mode        = "dir"
        insecure    = true
        chown       = true
        options {
          checksum = "md5:x"
          depth    = 1
        }
        headers {
          X-Token = "${TOKEN}"
        }
      }

      template {
        data          = <<-EOT
          {{ range service "db" }}
            host={{ .Address }}
          {{ end }}
          path=${NOMAD_TASK_DIR} cost=$${dollars}
        EOT
        destination   = "local/app.env"
        env           = true
        change_mode   = "signal"
        change_signal = "sighup"
        splay         = "1s"
        perms         = 600
        uid           = 1000
        gid           = -1
        once          = true
        vault_grace   = "1s"
        wait {
          min = "5s"
          max = "10s"
        }
        error_on_missing_key = true
      }

      template {
        source          = "a.tpl"
        destination     = "b"
        left_delimiter  = "[["
        right_delimiter = "]]"
        change_mode     = "script"
        change_script {
          command             = "/bin/reload"
          args                = ["now"]
          timeout             = "20s"
          fail_on_error       = true
          run_on_first_render = true
        }
      }

      dispatch_payload {
        file = "in.json"
      }

      identity {
        env           = true
        file          = true
        change_mode   = "signal"
        change_signal = "sigusr1"
        filepath      = "local/t"
      }

      identity {
        name         = "vault_default"
        aud          = ["vault.io"]
        ttl          = "1h"
        service_name = "s"
        extra_claims = ["a"]
      }

      vault {
        role                   = "r"
        policies               = ["p"]
        namespace              = "n"
        cluster                = "c"
        env                    = false
        disable_file           = true
        change_mode            = "noop"
        change_signal          = "SIGHUP"
        allow_token_expiration = true
      }

      consul {
        cluster = "default"
      }

      action "migrate" {
        command = "/bin/migrate"
        args    = ["-v"]
      }

      secret "db" {
        provider = "nomad"
        path     = "secrets/db"
        config {
          namespace = "x"
          nested {
            a = 1
          }
        }
        env {
          A = 1
        }
      }

      scaling "cpu" {
        enabled = true
        min     = 100
        max     = 1000
        policy {
          check "x" {}
        }
      }

      schedule {
        cron {
          start    = "0 8 * * *"
          end      = "0 18"
          timezone = "Europe/Berlin"
        }
      }
    }
  }
}
