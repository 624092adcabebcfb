# Volumes and a CSI plugin.
job "volumes" {
  type = "system"

  group "g" {
    volume "data" {
      type      = "host"
      source    = "data"
      read_only = true
      sticky    = true
    }

    volume "shared" {
      type            = "csi"
      source          = "shared"
      access_mode     = "multi-node-multi-writer"
      attachment_mode = "file-system"
      per_alloc       = true
      mount_options {
        fs_type     = "ext4"
        mount_flags = ["noatime"]
      }
    }

    volume "odd" {
      type = "floppy"
    }

    task "t" {
      driver = "docker"
      volume_mount {
        volume           = "data"
        destination      = "/data"
        read_only        = true
        propagation_mode = "host-to-task"
        selinux_label    = "z"
      }
      volume_mount {}
      csi_plugin {
        id                     = "p"
        type                   = "monolith"
        mount_dir              = "/csi"
        stage_publish_base_dir = "/local/csi"
        health_timeout         = "30s"
      }
    }
  }
}
