job "daemon" {
  group "daemon" {
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "daemon" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/echo"
        args     = ["--one", "--two=x y", "--one --two=\"x y\"", "--port=9000", "$HOME", ":$PORT"]
        work_dir = "/"
      }

      env {
        API_TOKEN = "abc def"
        MULTI     = "first\nsecond"
        OPTS      = "--one --two=\"x y\""
        PLAIN     = "a b # c"
        PORT      = "9000"
      }

      restart {
        attempts = 5
        interval = "10s"
        delay    = "100ms"
        mode     = "fail"
      }
    }

    task "daemon-stop" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        command  = "/bin/echo"
        args     = ["stopped"]
        work_dir = "/"
      }

      lifecycle {
        hook = "poststop"
      }

      env {
        API_TOKEN = "abc def"
        MULTI     = "first\nsecond"
        OPTS      = "--one --two=\"x y\""
        PLAIN     = "a b # c"
        PORT      = "9000"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }
    }
  }
}
