"""What AWS will refuse, or do otherwise than was meant, read off a CloudFormation template."""
