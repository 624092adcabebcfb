job "clock" {
  group "ticks" {
    task "two" {
      driver = "clock"

      config {
        every "tick" {
          seconds = 1
        }

        every "tock" {
          seconds = 5
          jitter  = "500ms"
        }

        at {
          hour = 12
          text = "noon"
        }

        at {
          hour   = 18
          minute = 30
          text   = "evening"
        }
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }

  group "unix" {
    task "errors" {
      driver = "clock"
      user   = "nobody"

      config {
        every "e" {
          seconds = 1
        }

        output {
          format = "unix"
          to     = "stderr"
        }
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }

  group "stubborn" {
    task "stays" {
      driver       = "clock"
      kill_timeout = "3s"
      kill_signal  = "SIGTERM"

      config {
        every "s" {
          seconds = 2
        }

        stubborn = true
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }

  group "ends" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "forty" {
      driver = "clock"

      config {
        every "x" {
          seconds = 1
        }

        lines     = 40
        exit_code = 7
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
