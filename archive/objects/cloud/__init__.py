"""Drivers of cloud object stores.

`obstore_driver` reads every store through obstore. `s3_writes` writes to S3 through botocore (`s3_client`),
`streamed_writes` to GCS and Azure through obstore; `buckets` opens the latter. Only this folder imports botocore.
"""
