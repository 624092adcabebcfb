# Reports the disk usage of each machine.

job "node-agent" {
  type     = "system"
  priority = 80

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  group "agent" {
    task "df" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "while true; do echo \"node=$NODE disk=$(df -P / | awk 'NR == 2 { print $5 }')\"; sleep 10; done"]
      }

      env {
        NODE = "${node.unique.name}"
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
