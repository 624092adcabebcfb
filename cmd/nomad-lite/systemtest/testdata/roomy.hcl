client {
  gc_disk_usage_threshold  = 100
  gc_inode_usage_threshold = 100
}
