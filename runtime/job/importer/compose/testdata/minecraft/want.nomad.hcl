job "minecraft" {
  group "minecraft" {
    network {
      port "mc" {
        static = 25565
        to     = 25565
      }
    }

    task "mc" {
      driver       = "docker"
      kill_timeout = "10s"

      config {
        image             = "itzg/minecraft-server"
        memory_hard_limit = 2048
        ports             = ["mc"]
        tty               = true
        interactive       = true
        volumes           = ["/srv/minecraft/data:/data", "/etc/timezone:/etc/timezone:ro"]
      }

      resources {
        cpu    = 100
        memory = 256
      }

      env {
        EULA   = "TRUE"
        MEMORY = "2G"
      }
    }
  }
}
