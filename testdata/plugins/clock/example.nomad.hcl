job "clock" {
  type = "batch"

  group "ends" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "three" {
      driver = "clock"

      config {
        every "first" {
          seconds = 1
        }

        lines     = 3
        exit_code = 7
      }
    }
  }
}
