"""Images and labels: record files, the loader, synthetic faces, the packer, verification sets."""
