# Runs the build script of a commit. The script can read the deploy key of the project: the
# identity of the task gives access to the variables of the job, and to nothing else.

job "ci-runner" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["commit"]
  }

  group "build" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "build" {
      driver = "raw_exec"

      identity {
        env  = true
        file = true
      }

      dispatch_payload {
        file = "build.sh"
      }

      template {
        destination = "local/run.sh"
        perms       = "0755"
        data        = <<-EOT
          #!/bin/sh
          set -eu
          # The path of a socket is limited, so it is addressed from its directory.
          cd "$NOMAD_SECRETS_DIR"
          DEPLOY_KEY=$(NOMAD_ADDR=unix:///proc/self/cwd/api.sock nomad-lite var get -item=deploy_key nomad/jobs/ci-runner)
          export DEPLOY_KEY
          cd "$NOMAD_TASK_DIR"
          echo "building $NOMAD_META_commit"
          sh ./build.sh
        EOT
      }

      config {
        command = "local/run.sh"
      }

      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
