# Removes uploads that are older than a day, every night.

variable "uploads" {
  type        = string
  description = "Directory of the uploads on the machine."
}

job "cleanup" {
  type = "batch"

  periodic {
    crons            = ["30 3 * * *"]
    prohibit_overlap = true
    time_zone        = "Europe/Berlin"
  }

  group "cleanup" {
    task "find" {
      driver = "raw_exec"

      config {
        command = "/usr/bin/find"
        args    = [var.uploads, "-type", "f", "-mtime", "+0", "-print", "-delete"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
