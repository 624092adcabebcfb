job "example" {
  group "hello" {
    task "greet" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "while true; do echo hello; sleep 1; done"]
      }
    }
  }
}
