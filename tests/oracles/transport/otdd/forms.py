"""What can stand for a class in a federated distance."""

#: (covariance, part)
FORMS = [
    ("sigma_frobenius", "full"),
    ("sigma_frobenius", "diagonal"),
    ("sqrt_frobenius", "full"),
    ("sqrt_frobenius", "diagonal"),
    ("sqrt_frobenius", "root_diagonal"),
]
