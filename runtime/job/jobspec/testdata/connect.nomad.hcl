# Consul Connect: parsed whole, refused later.
job "connect" {
  group "api" {
    network {
      mode = "bridge"
    }
    service {
      name = "api"
      port = 9001
      connect {
        sidecar_service {
          tags                      = ["x"]
          port                      = "p"
          disable_default_tcp_check = true
          meta {
            a = "b"
          }
          proxy {
            local_service_address = "127.0.0.1"
            local_service_port    = 9001
            expose {
              path {
                path            = "/health"
                protocol        = "http"
                local_path_port = 9001
                listener_port   = "health"
              }
            }
            upstreams {
              destination_name       = "db"
              destination_namespace  = "n"
              destination_peer       = "p"
              destination_partition  = "q"
              destination_type       = "service"
              local_bind_port        = 8080
              local_bind_address     = "127.0.0.1"
              local_bind_socket_path = "/s"
              local_bind_socket_mode = "0600"
              datacenter             = "dc2"
              mesh_gateway {
                mode = "local"
              }
              config {
                connect_timeout_ms = 9999
                limits {
                  max = 3
                }
              }
            }
            transparent_proxy {
              uid                    = "1000"
              outbound_port          = 15001
              exclude_inbound_ports  = ["http", "8000"]
              exclude_outbound_ports = [443, 80]
              exclude_outbound_cidrs = ["10.0.0.0/8"]
              exclude_uids           = ["42"]
              no_dns                 = true
            }
            config {
              protocol = "http"
            }
          }
        }
        sidecar_task {
          name           = "envoy"
          driver         = "docker"
          user           = "u"
          kill_timeout   = "9s"
          shutdown_delay = "1s"
          kill_signal    = "SIGINT"
          config {
            image = "envoy:${NOMAD_META_v}"
          }
          env {
            A = 1
          }
          meta {
            b = 2
          }
          resources {
            cpu = 50
          }
          logs {
            max_files = 1
          }
          volume_mount {
            volume = "v"
          }
          identity {
            name = "i"
          }
        }
      }
    }
    service {
      connect {
        native = true
      }
    }
  }

  group "gateway" {
    service {
      connect {
        gateway {
          proxy {
            connect_timeout                     = "500ms"
            envoy_gateway_bind_tagged_addresses = true
            envoy_gateway_bind_addresses "all" {
              address = "0.0.0.0"
              port    = 8443
            }
            envoy_gateway_no_default_bind = true
            envoy_dns_discovery_type      = "STRICT_DNS"
            config {
              x = { y = 1 }
            }
          }
          ingress {
            tls {
              enabled         = true
              tls_min_version = "TLSv1_2"
              cipher_suites   = ["A"]
              sds {
                cluster_name  = "c"
                cert_resource = "r"
              }
            }
            listener {
              port     = 8080
              protocol = "http"
              service {
                name  = "*"
                hosts = ["a.example.com"]
                request_headers {
                  add {
                    X-A = "1"
                  }
                  set {
                    X-B = "2"
                  }
                  remove = ["X-C"]
                }
                response_headers {
                  remove = ["Server"]
                }
                max_connections         = 10
                max_pending_requests    = 20
                max_concurrent_requests = 30
              }
            }
          }
        }
      }
    }
    service {
      connect {
        gateway {
          terminating {
            service {
              name      = "legacy"
              ca_file   = "ca"
              cert_file = "cert"
              key_file  = "key"
              sni       = "s"
            }
          }
        }
      }
    }
    service {
      connect {
        gateway {
          mesh {}
        }
      }
    }
  }

  multiregion {
    strategy {
      max_parallel = 1
      on_failure   = "fail_all"
    }
    region "west" {
      count       = 2
      datacenters = ["w1"]
      node_pool   = "p"
      meta {
        a = 1
      }
    }
    region "east" {}
  }
}
