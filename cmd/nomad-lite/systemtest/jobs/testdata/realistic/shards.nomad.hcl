# Reindexes the catalogue in three shards. Each instance works on its own part.

locals {
  shards = 3
}

job "reindex" {
  type = "batch"

  group "shard" {
    count = local.shards

    task "reindex" {
      driver = "docker"

      config {
        image   = "busybox:1.36"
        command = "/bin/sh"
        args    = ["-c", "for id in $(seq 0 8); do [ $((id % SHARDS)) = $SHARD ] && echo \"shard $SHARD: product $id\"; done; true"]
      }

      env {
        SHARD  = "${NOMAD_ALLOC_INDEX}"
        SHARDS = local.shards
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
