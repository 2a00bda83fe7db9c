"""The lease table and the fleet's own table on DynamoDB."""
