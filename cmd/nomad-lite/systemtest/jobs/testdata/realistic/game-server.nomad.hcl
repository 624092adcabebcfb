# A game server. Players send UDP packets to a fixed port of the machine; the world is in a
# host volume, which outlives the server.

variable "version" {
  type    = string
  default = "1.20"
}

variable "port" {
  type    = number
  default = 27015
}

job "game-server" {
  group "world" {
    # Two servers must not write to one world. The fixed port ensures it, too: the new version
    # starts when the old one has left the port.
    count = 1

    network {
      mode = "bridge"
      port "game" {
        static = var.port
        to     = 27015
      }
    }

    volume "world" {
      type        = "host"
      source      = "game-world"
      access_mode = "single-node-single-writer"
    }

    service {
      name     = "game-server"
      port     = "game"
      provider = "nomad"
    }

    task "server" {
      driver       = "docker"
      kill_timeout = "20s"

      config {
        image = "registry.example.com/games/sandbox:${var.version}"
        args  = ["-listen", ":${NOMAD_PORT_game}", "-world", "/world"]
      }

      volume_mount {
        volume      = "world"
        destination = "/world"
      }

      resources {
        cpu    = 200
        memory = 64
      }
    }
  }
}
