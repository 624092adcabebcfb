# A job for nomad-lite, or for any Nomad with the raw_exec driver.
#
#   nomad-lite job validate FILE          is it right?
#   nomad-lite run FILE                   run it here, until Ctrl-C
#   nomad-lite agent -dev                 or start an agent, and in another terminal:
#   nomad-lite job plan FILE              what would change?
#   nomad-lite job run FILE               run it, or its new version
#   nomad-lite job status example         what became of it?
#   nomad-lite job stop example

# A value that the command line can set: -var greeting=hi
variable "greeting" {
  type    = string
  default = "hello"
}

job "example" {
  # A service runs until it is stopped. A "batch" job runs until it is done; with
  # a "periodic" block, at certain times.
  type = "service"

  # How a new version takes the place of the old one: one allocation at a time,
  # each healthy for a second before the next. A failed version is taken back.
  update {
    max_parallel     = 1
    min_healthy_time = "1s"
    healthy_deadline = "1m"
    auto_revert      = true
  }

  # The tasks of a group run side by side, and share a directory and a network.
  group "hello" {
    count = 1

    # What ends is started again: twice within half an hour, after 15 seconds.
    # Then the allocation has failed, and is replaced by another.
    restart {
      attempts = 2
      interval = "30m"
      delay    = "15s"
      mode     = "fail"
    }

    # Ports are free ones of this machine, unless "static" asks for a certain one.
    # network {
    #   port "http" {}
    # }

    task "greet" {
      # raw_exec runs a program of this machine as it is.
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "while true; do echo \"$GREETING from $NOMAD_ALLOC_NAME\"; sleep 1; done"]
      }

      env {
        GREETING = var.greeting
      }

      # How long it may take to end after it was asked to, before it is killed.
      kill_timeout = "5s"

      # What it writes is kept in files of at most so many megabytes.
      logs {
        max_files     = 2
        max_file_size = 5
      }

      # What it may use: MHz and MiB.
      resources {
        cpu    = 50
        memory = 32
      }
    }

    # A task that has work to do before the others start.
    # task "prepare" {
    #   lifecycle {
    #     hook = "prestart"
    #   }
    #   driver = "raw_exec"
    #   config {
    #     command = "/bin/true"
    #   }
    # }
  }
}
