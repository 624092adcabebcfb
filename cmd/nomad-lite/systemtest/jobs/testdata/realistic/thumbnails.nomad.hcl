# Makes a preview of an uploaded text. It is dispatched once per upload, with the text as
# the payload:
#
#   nomad-lite job dispatch -meta user=ada thumbnails article.txt

job "thumbnails" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["user"]
    meta_optional = ["width"]
  }

  meta {
    width = "20"
  }

  group "thumbnail" {
    task "render" {
      driver = "docker"

      dispatch_payload {
        file = "upload.txt"
      }

      config {
        image   = "busybox:1.36"
        command = "/bin/sh"
        args    = ["-c", "echo \"preview for $NOMAD_META_user:\" $(cut -c 1-$NOMAD_META_width /local/upload.txt | head -n 1)"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
