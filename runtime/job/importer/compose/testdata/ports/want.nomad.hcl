job "ports" {
  group "ports" {
    network {
      port "dns_53" {
        static = 53
        to     = 53
      }

      port "dns_9153" {
        to = 9153
      }

      port "dns_8053" {
        static       = 8053
        to           = 8053
        host_network = "address-192-0-2-10"
      }

      port "dns_8054" {
        static       = 8054
        to           = 8054
        host_network = "loopback6"
      }

      port "dns_9000" {
        static = 9000
        to     = 9000
      }

      port "dns_9001" {
        static = 9001
        to     = 9001
      }

      port "dns_9002" {
        static = 9002
        to     = 9002
      }

      port "dns_8080" {
        static = 8080
        to     = 8080
      }

      port "dns_7000" {
        to = 7000
      }
    }

    task "dns" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "coredns/coredns:1.12.0"
        command           = "-conf"
        args              = ["/Corefile"]
        memory_hard_limit = 2048
        ports             = ["dns_53", "dns_9153", "dns_8053", "dns_8054", "dns_9000", "dns_9001", "dns_9002", "dns_8080", "dns_7000"]
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
