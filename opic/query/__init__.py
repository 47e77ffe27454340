"""What may be asked about pages, hosts and domains, answered from replicas."""
